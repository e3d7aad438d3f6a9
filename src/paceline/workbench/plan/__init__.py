"""The planner: acceptance rates and measured costs give a method, a draft length and settings.

`formula` needs two numbers. The rest measures this machine (`measure`), takes acceptance from a
replay or a benchmark, and predicts (`predict`), decides (`decide`) and exports (`export`).
"""
