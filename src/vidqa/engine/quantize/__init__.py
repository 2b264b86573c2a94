"""Quantization: calibration on training samples, the recipe of llm-compressor, and the proof of the written folder."""
