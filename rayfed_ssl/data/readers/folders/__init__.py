"""Folders of image files (``data.name: imagefolder``)."""
