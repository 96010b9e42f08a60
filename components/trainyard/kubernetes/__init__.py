"""Kubernetes: one client, the labels, the pods that a pool asks for, and what pods say of themselves."""
