"""Account-wide suppression: local meters, one aggregate of what they saw, and the share to refuse that follows."""
