"""Problems of the platform "docker"."""

from vidqa.core.problem import Code, Exit

DOCKER_NO_DAEMON = Code(
    "PLATFORM_DOCKER_NO_DAEMON",
    "No Docker daemon answers.",
    "Start it (sudo systemctl start docker), or let DOCKER_HOST name the one to use.",
    Exit.ENVIRONMENT,
)
DOCKER_PERMISSION = Code(
    "PLATFORM_DOCKER_PERMISSION",
    "You may not talk to the Docker daemon.",
    "Join the group of its socket (sudo usermod -aG docker $USER, then log in again), or use a rootless daemon.",
    Exit.ENVIRONMENT,
)
DOCKER_IMAGE_MISSING = Code(
    "PLATFORM_DOCKER_IMAGE_MISSING",
    "The image is neither on the daemon's machine nor in its registry.",
    "Build it there (docker/build.sh), load it, or correct --image.",
    Exit.ENVIRONMENT,
)
DOCKER_PULL_REFUSED = Code(
    "PLATFORM_DOCKER_PULL_REFUSED",
    "The registry does not hand out the image.",
    "Log in with an account that may read it (docker login REGISTRY), or pull it by hand to see why it fails.",
    Exit.ENVIRONMENT,
)
DOCKER_NOT_AN_ENGINE = Code(
    "PLATFORM_DOCKER_NOT_AN_ENGINE",
    "The image was not built as the engine of this version of the project.",
    "Build it with docker/build.sh from this checkout.",
    Exit.ENVIRONMENT,
)
DOCKER_NO_GPU_RUNTIME = Code(
    "PLATFORM_DOCKER_NO_GPU_RUNTIME",
    "The Docker daemon cannot give GPUs to a container.",
    "Install the NVIDIA Container Toolkit on its machine and restart the daemon; --gpus 0 runs on the CPU.",
    Exit.ENVIRONMENT,
)
DOCKER_DISK_FULL = Code(
    "PLATFORM_DOCKER_DISK_FULL",
    "The disk on which the Docker daemon keeps images and containers is full.",
    "Free space there: docker system df shows what takes it, docker system prune removes what nothing uses.",
    Exit.ENVIRONMENT,
)
DOCKER_PATH_MISSING = Code(
    "PLATFORM_DOCKER_PATH_MISSING",
    "A file or folder that the job needs is not at its path on the daemon's machine.",
    "Correct the path; a daemon on another machine needs the same shared file system at the same place.",
    Exit.ENVIRONMENT,
)
DOCKER_PATH_HIDES_CODE = Code(
    "PLATFORM_DOCKER_PATH_HIDES_CODE",
    "A folder that the job needs would be mounted over the program in the image.",
    "Move the data out of that folder, or name a folder further down in the spec.",
)
DOCKER_REFUSED = Code(
    "PLATFORM_DOCKER_REFUSED",
    "The Docker daemon refuses to run the container.",
    "Do what its own words in the message say.",
    Exit.ENVIRONMENT,
)
