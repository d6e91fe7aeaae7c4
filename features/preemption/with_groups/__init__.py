"""Preemption for requests whose instances join a server group: victims are chosen on hosts that its policy
permits.
"""
