# A stand-in for an image that brings its own PyTorch: Debian's Python with a CPU build, installed
# where Debian forbids it, as some vendors' images do. Its torchvision cannot load against it, and
# need not: only workloads that want it import it.
FROM scratch
ADD base.tar /
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
COPY wheels /tmp/wheels
RUN python3 -m pip install --no-cache-dir --break-system-packages --find-links /tmp/wheels \
        torch==2.13.0 numpy \
    && python3 -m pip install --no-cache-dir --break-system-packages --no-deps torchvision==0.28.0 \
    && rm -rf /tmp/wheels
CMD ["/bin/sh"]
