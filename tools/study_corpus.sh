#!/bin/bash
# Build an English text corpus from Debian 12 packages (main only; nothing is installed).
#
#   study_corpus.sh TIER [OUTDIR]       OUTDIR defaults to corpus/
#     small   4 MB   six Jane Austen novels                             (2 MB of downloads)
#     books   95 MB books, commentary, essays, dictionaries, games      (257 MB)
#     full    358 MB: books + package descriptions + manuals            (1.5 GB)
#
# Writes OUTDIR/corpus.txt (training), valid.txt (one document in 200, by hash)
# and stats.tsv.  One paragraph a line, an empty line between documents.
# Needs: apt-get, dpkg-deb and python3 (standard library only).
set -euo pipefail
tier=${1:?usage: study_corpus.sh small|books|full [OUTDIR]}
out=$(realpath -m "${2:-corpus}")
here=$(cd "$(dirname "$0")" && pwd)

# shellcheck disable=SC2034  # the three lists are read as ${!tier}
small="r-cran-janeaustenr"
books="$small
  sword-comm-tdavid sword-comm-mhcc sword-text-kjv sword-text-web anarchism
  dict-wn dict-gcide dict-foldoc jargon-text dict-devil fortunes fortune-anarchism
  cfi-en mh-book png-definitive-guide abs-guide c++-annotations-html
  debian-handbook debian-reference-en debian-policy developers-reference debian-faq debian-history
  harden-doc installation-guide-amd64 aptitude-doc-en maint-guide blends-doc
  gnome-user-docs libreoffice-help-en-gb
  endless-sky-data cataclysm-dda-data crawl-common nethack-common angband-data wesnoth-1.16-utbs"
# shellcheck disable=SC2034
full="$books
  linux-doc-6.1 linux-doc-6.12 python3.11-doc postgresql-doc-15 openjdk-17-doc perl-doc rust-doc
  erlang-doc racket-doc sqlite3-doc apache2-doc git-doc vim-runtime zsh-doc manpages manpages-dev
  freebsd-manpages cppreference-doc-en-html libboost1.81-doc llvm-19-doc clang-19-doc
  qtbase5-doc-html qtdeclarative5-doc-html qtcreator-doc python-django-doc python-sympy-doc
  python-scipy-doc python-pandas-doc python-sklearn-doc python-astropy-doc python-dask-doc
  twisted-doc python-sqlalchemy-doc exim4-doc-html postfix-doc bind9-doc ada-reference-manual-2012
  ada-reference-manual-2020 db5.3-doc fp-docs-3.2.2 dpdk-doc gsoap-doc ffmpeg-doc cmake-doc
  imagemagick-6-doc pike8.0-doc ns3-doc emacs-common spamassassin lintian sagemath-doc singular-doc
  libgtk-4-doc libgtk-3-doc libglib2.0-doc ghc-doc groovy-doc scala-doc acl2-doc gnome-devel-docs
  lilypond-doc-html csound-doc grass-doc octave-doc maxima-doc gnumeric-doc
  python-tornado-doc docutils-doc sphinx-doc python-flask-doc python-werkzeug-doc
  python-cryptography-doc python-ipython-doc python-celery-doc buildbot-doc python-biopython-doc
  python-xarray-doc python-pytest-doc mypy-doc python-brian-doc nova-doc neutron-doc cinder-doc
  keystone-doc ironic-doc octavia-doc glance-doc swift-doc heat-doc designate-doc manila-doc
  barbican-doc python-openstackclient-doc libstdc++-12-doc nodejs-doc tcl8.6-doc tk8.6-doc
  swi-prolog-doc sbcl-doc clisp-doc guile-3.0-doc r-doc-html gap-doc gap-online-help wireshark-doc
  haproxy-doc varnish-doc mailman3-doc drbd-doc ganeti-doc slurm-wlm-doc libvirt-doc
  qemu-system-common xen-doc openvswitch-doc ovn-doc bird2-doc frr-doc ntpsec-doc krb5-doc
  openafs-doc binutils-doc autoconf-doc neomutt mutt scons-doc docbook-xsl-doc-html povray-doc
  puredata-doc tomcat10-docs derby-doc gnuplot-doc postgis-doc ngspice-doc fwupd-doc systemtap-doc
  libssl-doc gnutls-doc ghostscript-doc libx11-doc xorg-docs ikiwiki gnuradio-doc petsc3.18-doc
  libpcl-doc llvm-22-doc uima-doc groonga-doc wx3.2-doc ogre-1.12-doc icu-doc"
case $tier in small|books|full) ;; *) echo "no such tier: $tier" >&2; exit 2 ;; esac

mkdir -p "$out/debs" "$out/text" "$out/lists/partial"
# A package list of our own, with the English long descriptions; the machine's lists stay as they are.
apt=(-q -o "Dir::State::lists=$out/lists" -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
     -o "Acquire::Languages=en" -o "APT::Sandbox::User=root")
apt-get "${apt[@]}" update >/dev/null

cd "$out/debs"
want=()
for p in ${!tier}; do
  ls "${p}"_*.deb >/dev/null 2>&1 || want+=("$p")
done
if [ ${#want[@]} -gt 0 ]; then
  # All at once; if one name is gone from the archive, one by one.
  apt-get "${apt[@]}" download "${want[@]}" >/dev/null 2>&1 ||
    for p in "${want[@]}"; do
      apt-get "${apt[@]}" download "$p" >/dev/null 2>&1 || echo "not available, left out: $p" >&2
    done
fi

files=()
for p in ${!tier}; do
  for f in "${p}"_*.deb; do [ -e "$f" ] && files+=("$out/debs/$f"); done
done
if [ "$tier" = full ]; then
  /usr/lib/apt/apt-helper cat-file "$out"/lists/*_main_i18n_Translation-en* > "$out/debs/package-descriptions.i18n"
  files+=("$out/debs/package-descriptions.i18n")
fi
python3 "$here/study_corpus.py" extract "$out/text" "${files[@]}"

texts=()                                  # in the order of the lists: books win over later repeats
for f in "${files[@]}"; do
  b=$(basename "$f"); b=${b%.i18n}; texts+=("$out/text/${b%%_*}.txt")
done
python3 "$here/study_corpus.py" merge "$out/corpus.txt" "$out/valid.txt" "$out/stats.tsv" "${texts[@]}"
ls -l "$out/corpus.txt" "$out/valid.txt"
