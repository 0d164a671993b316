"""Measuring a live OpenAI-compatible server: at every context length, sustained, and why."""
