"""Which drafter and settings to use for these prompts on this machine, and what they gain.

`candidates` lists the methods that the model allows, `race` eliminates the slower ones, `measure`
runs the race and checks its winner on other prompts, and `report` presents the result.
"""
