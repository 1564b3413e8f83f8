"""Speed of the Neural Power Unit, a layer, against eager torch, torch.compile, complex numbers, JAX and nn.Linear."""
