"""The verdicts of the probes other than resend, one file each: observations in, cells out."""
