"""Is a node fit, as NVML and the kernel show it, without torch and without rights."""
