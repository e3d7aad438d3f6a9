"""Which drafter and settings to use for these prompts on this machine, and what they gain.

`candidates` lists what the model allows, `race` spends the time on those that may be the best,
`measure` runs both the race and the check of its winner on other prompts, `report` says it.
"""
