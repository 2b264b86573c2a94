"""Problems of rendering a training for NVIDIA's container."""

from vidqa.contract.problem import Code

COSMOS_CANNOT = Code(
    "PLATFORM_COSMOS_CANNOT",
    "NVIDIA's cosmos-rl container cannot do what is asked, or cannot be rendered for it.",
    "Use our own engine, or change what the message names.",
)
