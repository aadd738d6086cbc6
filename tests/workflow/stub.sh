#!/bin/sh
# Stands in for `turncredit` in tests of the workflow's own logic: makes the output files of each command, empty.
set -eu
command=$1
shift
name= folders= scale= experiment= arm= seed= base=0 checkpoint=
while [ $# -gt 0 ]; do
    case $1 in
    --scale) scale=$2 && shift ;;
    --experiment) experiment=$2 && shift ;;
    --arm) arm=$2 && shift ;;
    --seed) seed=$2 && shift ;;
    --base) base=$2 && shift ;;
    --checkpoint) checkpoint=$2 && shift ;;
    *) if [ -z "$name" ]; then name=$1; else folders="$folders $1"; fi ;;
    esac
    shift
done

make() {
    for file in "$@"; do
        mkdir -p "$(dirname "$file")"
        echo "$command" > "$file"
    done
}

run=$scale/$experiment/$arm/base-$base/seed-$seed
case $command in
world) make data/$scale/corpus.jsonl data/$scale/world.json data/$scale/questions/facts.train.jsonl ;;
index) make index/$scale/index.json index/$scale/lucene/segments ;;
tokenizer) make policy/$scale/tokenizer/tokenizer.json ;;
base-policy) for file in expert/config.json initial/search/config.json attempts.csv; do make policy/$scale/base-$base/$file; done ;;
train) make results/$run/metrics.csv results/$run/manifest.json checkpoints/$run/final/config.json ;;
evaluate) make results/$run/evaluation.csv ;;
evaluate-initial) make results/$scale/untrained/$name/base-$base/evaluation.csv ;;
collect) for file in metrics.csv evaluation.csv.gz manifests.json episodes.jsonl SHA256SUMS; do make results/$scale/$name/$file; done ;;
credit-bench) for file in credit_bench.csv manifest.json; do make results/$scale/credit_bench/base-$base/$checkpoint/$file; done ;;
collect-credit-bench) for file in credit_bench.csv manifests.json; do make results/$scale/credit_bench/$file; done ;;
figure) for end in pdf png csv; do make figures/$scale/$name.$end; done ;;
table) for end in csv md tex; do make paper_tables/$scale/$name.$end; done ;;
audit) make paper_tables/$scale/audit.csv paper_tables/$scale/audit.md paper_tables/$scale/headline.txt paper_tables/$scale/report.rst ;;
*) echo "stub: no command $command" >&2 && exit 1 ;;
esac
