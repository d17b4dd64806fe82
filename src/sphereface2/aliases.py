"""What others call things: words that our heads understand, and words that only get a hint."""

# What OpenSphere, InsightFace, wespeaker and the papers call the options of heads, and our word for
# it: both are understood. Where two are named, the first that the head at hand takes is meant.
OPTION_ALIASES: dict[str, tuple[str, ...]] = {
    "alpha": ("balance",),
    "lam": ("balance",),
    "lanbuda": ("balance",),
    "r": ("radius", "scale"),
    "s": ("scale", "radius"),
    "gamma": ("scale",),
    "scale": ("radius",),
    "m": ("margin",),
    "t": ("sharpness",),
    "h": ("concentration",),
    "lw": ("loss_weight",),
    "b_theta": ("angular_bias",),
    "init_bias": ("bias_start",),
    "t_alpha": ("ema",),
    "l_a": ("norm_low",),
    "u_a": ("norm_high",),
    "l_margin": ("margin_low",),
    "u_margin": ("margin_high",),
    "lambda_g": ("norm_weight",),
}

# Words that are not understood, and what is meant by them.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "gpu": ("cuda",),
    "preset": ("name",),
    "augment": ("augmentation",),
    "nvidia": ("cuda",),
    "metal": ("mps",),
    "fp32": ("float32",),
    "float16": ("fp16",),
    "half": ("fp16",),
    "bfloat16": ("bf16",),
    "lr": ("learning_rate",),
    "wd": ("weight_decay",),
    "bs": ("batch_size",),
    "iterations": ("steps",),
    "threads": ("workers",),
    "lambda": ("balance",),
    "loss": ("head",),
    "model": ("backbone",),
    "network": ("backbone",),
    "dataset": ("data",),
    "root": ("path",),
    "dir": ("path",),
    "file": ("path",),
}


def other_words(option: str) -> set[str]:
    """All other words for the same option: those of 'r' are radius, scale, s and gamma."""
    words = {option}
    while True:
        related = {
            word
            for alias, ours in OPTION_ALIASES.items()
            if words & {alias, *ours}
            for word in (alias, *ours)
        }
        if related <= words:
            return words - {option}
        words |= related
