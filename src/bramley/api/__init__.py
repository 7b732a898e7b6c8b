"""HTTP only: validate, translate, encode. One folder per protocol; none imports another."""
