"""What runs on a GPU: kernels over the paged pool as it is stored, and what brings rows there and back."""
