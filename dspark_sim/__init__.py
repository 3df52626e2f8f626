"""Throughput-aware scheduling simulator and profiler for speculative decoding in LLM serving."""
