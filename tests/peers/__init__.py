"""The tests of PyTorch's launcher and of TorchX's components, told again as cases for flowdist: evidence/peers.md."""
