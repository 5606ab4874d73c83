"""Files: posteriors in safetensors, VNN-LIB."""
