"""Quantization: calibration on training samples, the recipe of llm-compressor, and the proof of what was written."""
