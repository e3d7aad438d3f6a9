"""The planner: from an acceptance rate and measured costs to a method, a draft length, settings.

`formula` needs two numbers. The rest measures this machine (`measure`), takes acceptance from a
replay or a benchmark, and predicts (`predict`), decides (`decide`) and exports (`export`).
"""
