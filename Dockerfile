# The environment of the Makefile in an image, from the same pins.
#
#   docker build -t califkit .                               CPU
#   docker build -t califkit-gpu --build-arg DEVICE=gpu .    CUDA and vLLM, for a host with an NVIDIA GPU
#   docker run -p 8888:8888 califkit                         JupyterLab, at the address that it prints
#   docker run califkit make reproduce PROFILE=ci
#
# Not built where this project is tested, which has no Docker.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

ARG DEVICE=cpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends make git build-essential \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /califkit
COPY . .

RUN if [ "$DEVICE" = gpu ]; then \
      python -m pip install --no-cache-dir -c constraints/gpu.txt -e '.[gpu]' \
   && python -m pip install --no-cache-dir --no-deps -r constraints/data.txt; \
    else \
      make env; \
    fi

ENV PATH="/califkit/.venv/bin:${PATH}" CALIFKIT_ROOT=/califkit
EXPOSE 8888
CMD ["jupyter", "lab", "notebooks", "--ip=0.0.0.0", "--no-browser", "--allow-root"]
