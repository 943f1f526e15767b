"""Skills: folders with a SKILL.md.

frontmatter   the head of a SKILL.md, read
folder        a skill in a directory of skills, found by name and version
bundle        a skill as one deterministic archive, and back; what could do harm is refused
install       an archive becomes the skill that a directory has, in one step
places        where each agent keeps its skills, and whether it takes those of others
distribution  the owner's side: a task for every agent that is to have a skill
installer     the receiving side: the gateway installs it in the agent's name
"""
