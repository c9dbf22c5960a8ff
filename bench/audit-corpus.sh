#!/usr/bin/env bash
# Precision and recall of the audit's inventory, from the hand labels in audit-corpus.tsv. bench/README.md tells how they were made.
#
#   bench/audit-corpus.sh                  the figures, by rule
#   bench/audit-corpus.sh compare DIR      audits the rendered texts in DIR (named SHA256.yaml) with target/release/fencedlock, and prints what
#                                          differs from the labels
set -euo pipefail
cd "$(dirname "$0")"
corpus="audit-corpus.tsv"

figures() {
  awk -F'\t' '
    NR == 1 { next }
    $11 == "nothing" { next }
    { label[$6, $11]++; rules[$6] = 1 }
    END {
      for (rule in rules) {
        right = label[rule, "right"]; wrong = label[rule, "wrong"]; missed = label[rule, "missed"]
        printf "%s: %d right, %d wrong, %d missed: precision %.3f, recall %.3f\n", rule, right, wrong, missed, right / (right + wrong), right / (right + missed)
      }
    }' "$corpus" | sort
  awk -F'\t' 'NR > 1 { repositories[$1] = 1; texts[$5] = 1 } END { printf "%d repositories, %d texts\n", length(repositories), length(texts) }' "$corpus"
}

compare() {
  local dir=$1 audit=../target/release/fencedlock found labelled
  found=$(mktemp) labelled=$(mktemp)
  # shellcheck disable=SC2064 # The names are known now.
  trap "rm -f '$found' '$labelled'" EXIT
  awk -F'\t' 'NR > 1 { print $5 }' "$corpus" | sort -u | while read -r digest; do
    [[ $(sha256sum <"$dir/$digest.yaml") == "$digest"* ]] || { echo "audit-corpus: $dir/$digest.yaml is another text" >&2; exit 1; }
    "$audit" audit "$dir/$digest.yaml" --fail-on never -o json |
      jq -r --arg digest "$digest" '.findings[] | select(.rule | IN("unclassified-leader-election", "unfenced-singleton"))
        | [$digest, .rule, .object.kind, .object.name, .about // ""] | @tsv'
  done | sort -u >"$found"
  awk -F'\t' 'NR > 1 && ($11 == "right" || $11 == "wrong") { print $5 "\t" $6 "\t" $7 "\t" $8 "\t" $9 }' "$corpus" | sort -u >"$labelled"
  diff "$labelled" "$found" && echo "the audit finds what is labelled"
}

case ${1:-} in
  "") figures ;;
  compare) compare "${2:?compare DIR}" ;;
  *) sed -n '2,7p' "$0" >&2; exit 2 ;;
esac
