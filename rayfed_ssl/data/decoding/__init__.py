"""Turns image files, bytes and arrays into uint8 squares: formats, bit depth, DICOM, threads."""
