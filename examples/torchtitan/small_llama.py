"""torchtitan's configurations of this example: `--module small_llama --config NAME`.

    small    torchtitan's debug model on a folder of texts, with checkpoints in the run directory

Every option of torchtitan may follow, such as --parallelism.tensor_parallel_degree 2.
"""

import os

from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer


def small() -> Trainer.Config:
    """Return it; TEXTS is a folder of .jsonl files, TOKENIZER one of Hugging Face's."""
    config = llama3_debugmodel()
    config.dump_folder = os.environ["DDP_RUN_DIR"]
    config.hf_assets_path = os.environ.get("TOKENIZER", "tokenizer")
    config.dataloader.dataset_path = os.environ.get("TEXTS", "texts")
    config.training.steps = 200
    config.checkpoint.enable = True
    config.checkpoint.folder = "checkpoints"
    config.checkpoint.interval = 50
    config.validator.enable = False
    return config
