"""Predict: the answers of a pushed model to many inputs. No step of a training's graph."""
