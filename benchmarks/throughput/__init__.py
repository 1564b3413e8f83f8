"""Speed of the layers against eager torch, torch.compile, complex numbers, JAX and nn.Linear."""
