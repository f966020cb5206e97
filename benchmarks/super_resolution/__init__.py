"""Questions about the upscaling of images; each file answers one."""
