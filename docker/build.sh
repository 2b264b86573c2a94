#!/usr/bin/env bash
# Builds the engine image and records it in config.json: docker/build.sh [--tag REPOSITORY:TAG] [--push] [-- BUILD OPTIONS]
#
#   docker/build.sh
#   docker/build.sh --tag registry.example.org/team/engine:0.1.0 --push -- --build-arg BASE_IMAGE=my/base:1
#
# Only built, the image is recorded by its id, which this machine's daemon knows; pushed, by its digest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
tag=finetune-cosmos-reason-engine:$version
config=config.json
push=
while [ $# -gt 0 ]; do
  case $1 in
    --tag) tag=$2; shift 2 ;;
    --config) config=$2; shift 2 ;;  # record it in another file
    --push) push=yes; shift ;;
    --) shift; break ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain -- src docker workflow/demo pyproject.toml requirements.lock 2>/dev/null)" ] || commit=$commit-dirty

# The context is made here and holds nothing else: no data, no results, no .git, no token in a stray file.
tar --exclude=__pycache__ --exclude='*.egg-info' --sort=name --mtime=@0 --owner=0 --group=0 \
    -c pyproject.toml requirements.lock README.md LICENSE src docker workflow/demo |
  docker build --file docker/Dockerfile --tag "$tag" --build-arg VERSION="$version" --build-arg COMMIT="$commit" "$@" -

image=$(docker image inspect --format '{{.Id}}' "$tag")
if [ -n "$push" ]; then
  docker push "$tag"
  name=${tag##*/}
  repository=${tag%"$name"}${name%%:*}  # an image may have been pushed to others before
  image=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$tag" | grep -F -m1 -- "$repository@")
fi
python3=.venv/bin/python
[ -x $python3 ] || python3=python3
PYTHONPATH=src $python3 -P -m vidqa.jobs.images "$tag" "$image" "$config"
echo "$tag is $image, recorded in $config"
