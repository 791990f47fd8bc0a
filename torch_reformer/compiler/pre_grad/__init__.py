"""Rewrites of the graph that Dynamo captured, before autograd sees it."""
