"""The real thing: a torch verifier with its drafters, trained, run losslessly and recorded.

The only room that imports torch (extra `model`), and only inside its modules.
"""
