"""DICOM files of known values, as pydicom writes them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian

CT = "1.2.840.10008.5.1.4.1.1.2"
REPORT = "1.2.840.10008.5.1.4.1.1.88.11"
DICOMDIR = "1.2.840.10008.1.3.10"


def scan(values: np.ndarray, bits: int | None = None, syntax: str = ExplicitVRLittleEndian, **said: Any) -> FileDataset:
    """``values`` (H, W), or (frames, H, W) with NumberOfFrames, or (H, W, 3); ``said`` are attributes by keyword."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = UID(CT), UID("1.2.3")
    meta.TransferSyntaxUID = UID(syntax)
    header = FileDataset(None, Dataset(), file_meta=meta, preamble=b"\0" * 128)
    header.SOPClassUID, header.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    coloured = values.ndim == 3 and "NumberOfFrames" not in said
    header.Rows, header.Columns = values.shape[:2] if coloured else values.shape[-2:]
    header.SamplesPerPixel = 3 if coloured else 1
    if coloured:
        header.PlanarConfiguration = 0
    header.PhotometricInterpretation = "RGB" if coloured else "MONOCHROME2"
    header.BitsAllocated = 8 * values.itemsize
    header.BitsStored = bits or header.BitsAllocated
    header.HighBit = header.BitsStored - 1
    header.PixelRepresentation = int(values.dtype.kind == "i")
    header.PixelData = values.tobytes() + b"\0" * (values.nbytes % 2)
    header["PixelData"].VR = "OB" if values.itemsize == 1 else "OW"
    for keyword, value in said.items():
        setattr(header, keyword, value)
    return header


def lut(first: int, table: np.ndarray, bits: int) -> list[Dataset]:
    """A sequence of one LUT: (256 or more,) entries of ``bits``, for values from ``first`` on."""
    item = Dataset()
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [len(table), first, bits])
    item.add_new("LUTData", "US", [int(value) for value in table])
    return [item]


def encoded(header: Dataset) -> bytes:
    file = io.BytesIO()
    pydicom.dcmwrite(file, header, enforce_file_format=True)
    return file.getvalue()


def save(header: Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(header))
    return path


def without_image(sop_class: str) -> bytes:
    """A file of a class without pixels, such as a report."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = UID(sop_class), UID("1.2.3")
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header = FileDataset(None, Dataset(), file_meta=meta, preamble=b"\0" * 128)
    header.SOPClassUID, header.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    header.PatientID = "P1"
    return encoded(header)
