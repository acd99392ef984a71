"""The places where ranks start: one file each, behind the protocol in base."""
