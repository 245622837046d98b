"""Folders of images as data sets: scan, decode once, cache, report."""

from common.data.image_folder.folder_options import FolderOptions, own_options
from common.data.image_folder.load import load_folder
from common.data.image_folder.report import FolderReport, inspect_folder

__all__ = ["FolderOptions", "FolderReport", "inspect_folder", "load_folder", "own_options"]
