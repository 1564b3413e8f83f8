"""What a checkpoint's file has: tests read it, and forge it."""

from npu_kernels._jobs import files

load, save = files.load, files.save
