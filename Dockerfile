# leadsman's image for those who build with Docker or BuildKit; `cargo xtask image` needs neither and makes one like it.
#
#   docker build --build-arg REVISION="$(git rev-parse HEAD)" --tag leadsman:0.1.0 .
#
# The version of Rust is that of rust-toolchain.toml, and glibc that of Debian 12: name resolution without shared libraries
# needs 2.34 or later. An image for another architecture is built on a node of it (`docker build --platform`).
FROM rust:1.95.0-bookworm AS build
# The toolchain of this image, without the components for development that rust-toolchain.toml names.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /leadsman
COPY . .
# Without `--target` the flags would also be for build scripts and procedural macros, which cannot be linked statically.
RUN host="$(rustc -vV | sed -n 's/^host: //p')" \
 && RUSTFLAGS="-Ctarget-feature=+crt-static --remap-path-prefix=/usr/local/cargo=/cargo" \
    cargo build --locked --release --package leadsman --bin leadsman --bin leadsman-agent --target "$host" \
 && mkdir /programs \
 && mv "target/$host/release/leadsman" "target/$host/release/leadsman-agent" /programs

FROM scratch
ARG REVISION
LABEL org.opencontainers.image.title="leadsman" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /programs/ /
USER 65532:65532
ENTRYPOINT ["/leadsman"]
