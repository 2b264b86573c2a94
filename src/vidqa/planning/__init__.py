"""What is known of a run before it starts: its samples, their packing, memory, time, and what resuming may change."""
