"""Tests of the motion generator."""
