"""Load client: starts servers in turn, streams from them over loopback and prints figures and ratios."""
