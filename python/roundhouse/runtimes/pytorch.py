"""PyTorch models saved as TorchScript."""

from typing import Any, Dict

import numpy as np

from .base import TensorRuntime, library, named


class TorchScript(TensorRuntime):
    """Inputs are passed in the model's order, in their own dtype. The device
    is ``extra.device``, by default the CPU."""

    FILES = ["model.pt", "model.pth"]

    def open(self, path: str) -> Any:
        torch = library("torch")
        self._torch, self._device = torch, self.option("device", "cpu")
        model = torch.jit.load(path, map_location=self._device).eval()
        arguments = [a.name for a in model.forward.schema.arguments]
        self.names = [name for name in arguments if name != "self"]
        # TorchScript has no types of elements: its parameters tell.
        floating = [p.dtype for p in model.parameters() if p.is_floating_point()]
        dtype = str((floating or [torch.get_default_dtype()])[0]).rpartition(".")[2]
        if hasattr(np, dtype):  # not bfloat16
            self.dtypes = dict.fromkeys(self.names, dtype)
        return model

    def run(self, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        torch = self._torch
        tensors = [
            torch.from_numpy(np.require(arrays[name], requirements="CW"))
            for name in self.names or arrays
        ]
        with torch.inference_mode():
            answer = self._model(*(t.to(self._device) for t in tensors))
        return {k: v.detach().cpu().numpy() for k, v in named(answer).items()}
