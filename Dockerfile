# One image for the CPU smoke test, the GPU workstation and the cluster.
#
#   docker build -t ddp .                                           # on an official slim Python
#   docker build -t ddp --build-arg BASE_IMAGE=IMAGE .              # on any image with Python 3.11+
#   docker run --rm -v "$PWD/out:/out" ddp --epochs 1               # the smoke test: two ranks
#   container/to_squashfs.sh ddp ddp.sqsh                           # one file for Enroot and Pyxis
#
# A torch that the base image brings is kept (an NGC PyTorch image: built for its own CUDA and NCCL).
# No BuildKit needed. Nothing here sets NCCL_*, OMP_*, MASTER_* or DDP_OUT: under Enroot an image's
# environment beats the job's.
ARG BASE_IMAGE=python:3.12-slim-trixie
FROM ${BASE_IMAGE}

# For a mirror; they leave no trace in the image. A proxy's variables are Docker's own build arguments.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS

# What changes least comes first: a change of the source installs none of it again.
COPY container/install.sh /opt/ddp/container/
RUN DEBIAN_FRONTEND=noninteractive /opt/ddp/container/install.sh system
COPY pyproject.toml /opt/ddp/
RUN /opt/ddp/container/install.sh dependencies

COPY README.md LICENSE /opt/ddp/
COPY rundir /opt/ddp/rundir
COPY trainer /opt/ddp/trainer
COPY monitor /opt/ddp/monitor
COPY jobs /opt/ddp/jobs
COPY container /opt/ddp/container
COPY examples /opt/ddp/examples
RUN /opt/ddp/container/install.sh project

# The NVIDIA_* ask Enroot (and Docker, where NVIDIA's runtime is the default) for the node's driver:
# without them a container has none. What the base image asks for stays. What a user has in ~/.local
# would be taken for the base image's own.
ENV PATH=/opt/venv/bin:$PATH \
    DDP_HOME=/opt/ddp \
    PYTHONNOUSERSITE=1 \
    NVIDIA_VISIBLE_DEVICES=${NVIDIA_VISIBLE_DEVICES:-all} \
    NVIDIA_DRIVER_CAPABILITIES=${NVIDIA_DRIVER_CAPABILITIES:-compute,utility}

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="ddp" \
      org.opencontainers.image.description="Containerized distributed PyTorch training on Slurm" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Any user may write the volume; all else may stay read-only and belong to root.
VOLUME /out
WORKDIR /opt/ddp
ENTRYPOINT ["/opt/ddp/container/entrypoint.sh"]
CMD []
