"""Timelines: recording what a model's steps spend their time on, and showing it to people."""
