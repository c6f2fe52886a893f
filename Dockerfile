# The command `bandgnn` with JAX on CPUs; other extras: --build-arg EXTRAS=torch,chem
#   docker build -t bandgnn . && docker run --rm bandgnn demo
FROM python:3.12-slim AS build
WORKDIR /src
RUN pip install --no-cache-dir build
COPY . .
RUN python -m build --wheel --outdir /dist

FROM python:3.12-slim
ARG EXTRAS=jax
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(echo /dist/*.whl)[$EXTRAS]" && rm -r /dist
RUN useradd --create-home bandgnn
USER bandgnn
WORKDIR /home/bandgnn
ENTRYPOINT ["bandgnn"]
CMD ["--help"]
