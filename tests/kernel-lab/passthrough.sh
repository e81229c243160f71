# Guest script: disks by their own commands, against QEMU's disks and the kernel's scsi_debug.
# Disks of 64 MiB: SCSI 0 "source" (random data), 1 "destination", 2 "bad" (one sector cannot be read); NVMe 0 "nvme-destination",
# 1 "nvme-bad" (one sector cannot be read), 2 with metadata, 3 "nvme-copies" with two namespaces.
# Prints lines as check.sh has them. What is copied in the end is compared by whoever started this, on the images: destinations must hold what source holds.

. /lab/check.sh
export LD_LIBRARY_PATH=/lab HOME=/tmp XDG_STATE_HOME=/tmp/state
for module in virtio_pci virtio_scsi sd_mod sg nvme ext4 crc32c_generic; do modprobe $module; done
hikyaku=/lab/hikyaku

sg() { # NAME: the sg node of the disk with this serial number
  for node in /sys/class/scsi_generic/sg*; do
    grep -qa "$1" $node/device/vpd_pg80 2>/dev/null && echo /dev/${node##*/}
  done
}
block() { # SG: its block device
  echo /dev/$(ls /sys/class/scsi_generic/${1#/dev/}/device/block)
}
commands() { # SG: how many it was given so far
  printf %d "$(cat /sys/class/scsi_generic/${1#/dev/}/device/iorequest_cnt)"
}

wait_for test -e /dev/sg2 || { echo "FAIL disks"; dmesg | tail; exit 9; }
source=$(sg source) destination=$(sg destination) bad=$(sg bad)
disk=$(block $destination)
echo "DISKS $source $destination $bad, $disk"

check info $hikyaku info $source
grep -E '^(kind|commands|WCE|data|longest)' $said
dd if=$(block $source) of=/tmp/image bs=1M count=64 2> /dev/null

# Files and disks, both ways.
expect disk-to-file 0 verified $hikyaku copy $source /tmp/back,create,size=64M --verify
check disk-to-file-same cmp -s /tmp/image /tmp/back
rm /tmp/back
expect file-to-disk 0 verified $hikyaku copy /tmp/image $destination --verify --force
check file-to-disk-same cmp -s -n 67108864 /tmp/image $disk

# One chunk, one command at each end: what 32 MiB more cost is 64 chunks of 512 KiB.
count() { # MIB: commands that a copy gave to both
  before=$(commands $1); $hikyaku copy $source $destination --force --sparse off --chunk 512K --size $2 > $said 2>&1 || fail count
  echo $(($(commands $1) - before))
}
for end in source destination; do
  eval node=\$$end
  less=$(count $node 16M) more=$(count $node 48M)
  echo "16 MiB: $less commands, 48 MiB: $more" > $said
  check one-command-a-chunk-$end test $((more - less)) = 64
done

# The same disk by another name, and disks in use.
expect same-disk 6 "same storage" $hikyaku copy $disk $destination --force
expect same-disk-other-way 6 "same storage" $hikyaku copy $destination $disk --force
mkfs.ext4 -q -F $disk > /dev/null 2>&1
expect signature 6 "ext4" $hikyaku copy $source $destination
mkdir -p /mnt; mount -t ext4 $disk /mnt
expect mounted 6 "mounted" $hikyaku copy $source $destination --force
umount /mnt
$hikyaku copy $source $destination --force --rate 4M > $said 2>&1 &
copy=$!
held() { ! mount -t ext4 $disk /mnt; }
sleep 3
check held-meanwhile held
kill $copy; wait $copy

# What the page cache holds: of the source it is copied, of the destination it is forgotten.
exec 9< $disk
dd if=/dev/urandom of=$disk bs=1M count=8 conv=notrunc 2> /dev/null
dd if=$disk of=/tmp/dirty bs=1M count=8 2> /dev/null
expect dirty-source 0 copied $hikyaku copy $destination /tmp/clean,create,size=64M --size 8M
check dirty-source-same cmp -s -n 8388608 /tmp/dirty /tmp/clean
rm /tmp/dirty /tmp/clean
expect cached-destination 0 copied $hikyaku copy $source $destination --force
check cached-destination-same cmp -s -n 67108864 /tmp/image $disk
exec 9<&-

# A sector that cannot be read.
expect bad-sector 1 "sense" $hikyaku copy $bad null:64M
grep -i sense $said | head -1

# The kernel's own disk: MEDIUM ERROR, WRITE SAME, and what goes away.
debug() { modprobe scsi_debug "$@" && wait_for sh -c 'grep -l scsi_debug /sys/class/scsi_generic/*/device/model' &&
  model=$(grep -l scsi_debug /sys/class/scsi_generic/*/device/model) && model=${model%/device/model} && debug=/dev/${model##*/} &&
  wait_for ls /sys/class/scsi_generic/${debug#/dev/}/device/block; }
debug dev_size_mb=32 lbpws=1 lbprz=1
head -c 33554432 /tmp/image > /tmp/part
expect write-same-full 0 verified $hikyaku copy /tmp/part $debug --force --verify
expect write-same 0 verified $hikyaku copy null:32M $debug --force --verify
check write-same-used sh -c "$hikyaku info $debug | grep -q 'write zeroes *yes'"
expect write-same-zero 0 "" $hikyaku compare null:32M $debug
$hikyaku copy /tmp/part $debug --force --rate 2M > $said 2>&1 &
copy=$!
sleep 4
echo 1 > /sys/class/scsi_generic/${debug#/dev/}/device/delete
wait $copy; code=$?
mv $said /tmp/gone; sed 's/^/  /' /tmp/gone | tail -3
check gone-code test $code = 1
check gone-said grep -qi "gone" /tmp/gone
rmmod scsi_debug
debug dev_size_mb=32 virtual_gb=2 opts=2 medium_error_start=1000000 medium_error_count=8
expect medium-error 7 "cannot be read" $hikyaku copy $debug null:1100M --size 1100M
grep -v '^#' /tmp/state/hikyaku/copies/*.map
# Eight sectors from 1,000,000 on, and nothing else.
check medium-error-map grep -q '^0x1E848000 *0x0*1000 *-$' /tmp/state/hikyaku/copies/*.map
check medium-error-nothing-else test "$(grep -c '[-*/?]$' /tmp/state/hikyaku/copies/*.map)" = 1
rmmod scsi_debug

# NVMe: the same by the other family's commands, and from one family to the other.
ng() { # NAME: the node of the namespace whose controller has this serial number
  for node in /sys/class/nvme-generic/ng*; do
    grep -q "^$1 *$" /sys/class/nvme/nvme$(echo ${node##*/ng} | cut -dn -f1)/serial && echo /dev/${node##*/}
  done
}
counted() { # NODE: reads and writes that the controller has carried out
  nvme smart-log /dev/nvme$(echo ${1#/dev/ng} | cut -dn -f1) -o json | sed -n 's/.*"host_\(read\|write\)_commands" *: *"*\([0-9]*\).*/\2/p' | tr '\n' ' '
}
wait_for test -e /dev/ng2n1 || fail nvme-disks
nvme=$(ng nvme-destination) nvme_disk=/dev/nvme${nvme#/dev/ng}
check nvme-info $hikyaku info $nvme
grep -E '^(kind|VWC|longest|write zeroes)' $said
expect scsi-to-nvme 0 verified $hikyaku copy $source $nvme --verify
check scsi-to-nvme-same cmp -s -n 67108864 /tmp/image $nvme_disk
expect nvme-to-scsi 0 verified $hikyaku copy $nvme $destination --force --verify
expect nvme-zeroes 0 verified $hikyaku copy null:16M $nvme --force --verify
expect nvme-zeroes-same 0 "" $hikyaku compare null:16M $nvme --size 16M
nvme_count() { # MIB
  set -- $1 $(counted $nvme); $hikyaku copy $source $nvme --force --sparse off --chunk 512K --size $1 > $said 2>&1 || fail nvme-count
  before=$3; set -- $(counted $nvme); echo $(($2 - before))
}
less=$(nvme_count 16M) more=$(nvme_count 48M)
echo "16 MiB: $less writes, 48 MiB: $more" > $said
check nvme-one-command-a-chunk test $((more - less)) = 64
expect nvme-same-disk 6 "same storage" $hikyaku copy $nvme_disk $nvme --force
mkfs.ext4 -q -F $nvme_disk > /dev/null 2>&1; mount -t ext4 $nvme_disk /mnt
expect nvme-mounted 6 "mounted" $hikyaku copy $source $nvme --force
umount /mnt
expect nvme-bad-sector 1 "Unrecovered Read Error\|NVMe status" $hikyaku copy $(ng nvme-bad) null:64M
grep -i "nvme status" $said | head -1
expect nvme-metadata 1 "metadata" $hikyaku info $(ng nvme-metadata)
expect nvme-in-the-end 0 verified $hikyaku copy $source $nvme --force --verify

# NVMe Copy: from one partition of a namespace to another; no byte is read or written through the kernel.
parted() { # DISK OFFSET LENGTH OFFSET LENGTH: two partitions, in sectors as the partition table has them
  { printf "\\0\\0\\0\\0\\203\\0\\0\\0$2$3\\0\\0\\0\\0\\203\\0\\0\\0$4$5"; head -c 32 /dev/zero; printf '\125\252'; } | dd of=$1 bs=1 seek=446 2> /dev/null
  blockdev --rereadpt $1
  wait_for test -e $1"p2"
}
sectors() { # DISK: read and written so far
  set -- $(cat /sys/block/${1#/dev/}/stat); echo $(($3 + $7))
}
set -- $(ng nvme-copies)
copies=/dev/nvme${1#/dev/ng} large=/dev/nvme${2#/dev/ng}
# 24 MiB at 1 MiB and at 33 MiB.
parted $copies '\0\010\0\0' '\0\300\0\0' '\0\010\001\0' '\0\300\0\0'
check nvme-copy-info sh -c "$hikyaku info $1 | grep -q 'Copy *512 blocks'"
before=$(sectors $copies)
expect nvme-copy 0 '"offload":"nvme_copy".*"offloaded_bytes":25165824' $hikyaku copy ${copies}p1 ${copies}p2 --force --offload require --json
echo "sectors: $before before, $(sectors $copies) after" > $said
check nvme-copy-through-nobody test $(($(sectors $copies) - before)) -lt 256
check nvme-copy-same cmp -s ${copies}p1 ${copies}p2
expect nvme-copy-verified 0 "verified.*NVMe Copy" $hikyaku copy ${copies}p1 ${copies}p2 --force --verify
# What the page cache holds: of the source it is copied, of the destination it is forgotten.
# They are held open, as the last who closes a device has its pages written and forgotten.
exec 8< ${copies}p1 9< ${copies}p2
dd if=/dev/urandom of=${copies}p1 bs=1M count=4 conv=notrunc 2> /dev/null
expect nvme-copy-cached 0 "NVMe Copy" $hikyaku copy ${copies}p1 ${copies}p2 --force --offload require
check nvme-copy-cached-same cmp -s ${copies}p1 ${copies}p2
exec 8<&- 9<&-
# A part, not at the same place; what lies beside it stays.
expect nvme-copy-part 0 "NVMe Copy" $hikyaku copy ${copies}p1 ${copies}p2 --force --offload require --src-offset 512 --dst-offset 512K --size 3584512
check nvme-copy-part-same cmp -s -n 3584512 ${copies}p1 ${copies}p2 512 524288
check nvme-copy-part-before cmp -s -n 524288 ${copies}p1 ${copies}p2
check nvme-copy-part-after cmp -s ${copies}p1 ${copies}p2 4108800 4108800
expect nvme-copy-off 0 '"offload":"none"' $hikyaku copy ${copies}p1 ${copies}p2 --force --offload off --json
check nvme-copy-off-same cmp -s ${copies}p1 ${copies}p2
# What it is not for.
expect nvme-copy-same-disk 6 "same storage" $hikyaku copy ${copies}p1 $copies --force --offload require
expect nvme-copy-other 1 "not namespaces of one controller" $hikyaku copy ${copies}p1 $nvme_disk --force --offload require
expect nvme-copy-no-nvme 1 "no NVMe namespace" $hikyaku copy ${copies}p1 $disk --force --offload require
# A sector that cannot be read, 19.5 MiB from the start: what lies before it is the controller's, the error at it the mover's.
bad_disk=/dev/nvme$(ng nvme-bad | cut -dg -f2)
parted $bad_disk '\0\010\0\0' '\0\300\0\0' '\0\010\001\0' '\0\300\0\0'
expect nvme-copy-bad-required 1 "by itself.*nvme status" $hikyaku copy ${bad_disk}p1 ${bad_disk}p2 --force --offload require
grep -i "nvme status" $said | head -1
dd if=/dev/zero of=${bad_disk}p2 bs=1M count=18 2> /dev/null
expect nvme-copy-bad 1 "cannot .*read" $hikyaku copy ${bad_disk}p1 ${bad_disk}p2 --force
check nvme-copy-bad-before cmp -s -n 18874368 ${bad_disk}p1 ${bad_disk}p2
# Between namespaces, by any of their names, where the controller knows how (QEMU 9.1).
if [ $(($(nvme id-ctrl /dev/ng${2#/dev/ng} 2> /dev/null | sed -n 's/^ocfs *: //p') & 4)) = 0 ]; then
  expect nvme-copy-between 1 "does not copy between namespaces" $hikyaku copy ${copies}p1 $2 --force --offload require
else
  expect nvme-copy-between 0 "NVMe Copy" $hikyaku copy ${copies}p1 $2 --force --offload require
fi
expect nvme-copy-between-auto 0 verified $hikyaku copy $1 $large --force --size 48M --dst-offset 8M --verify
check nvme-copy-between-same cmp -s -n 50331648 $copies $large 0 8388608
# Two partitions of 1040 MiB, at 1 MiB and at 1041 MiB: a journal is kept.
parted $large '\0\010\0\0' '\0\200\040\0' '\0\210\040\0' '\0\200\040\0'
for at in 0 500 1020; do dd if=/tmp/image of=${large}p1 bs=1M seek=$at count=8 2> /dev/null; done
rm -f /tmp/state/hikyaku/copies/*
$hikyaku copy ${large}p1 ${large}p2 --json --offload require > $said 2>&1 &
copy=$!
wait_for grep -q '"bytes":[1-9]' $said
kill -INT $copy; wait $copy; code=$?
check nvme-copy-interrupted test $code = 130
journal=$(echo /tmp/state/hikyaku/copies/*.map)
check nvme-copy-claimed grep -q '[+]$' $journal
expect nvme-copy-resumed 0 '"offload":"nvme_copy"' $hikyaku copy ${large}p1 ${large}p2 --json --offload require --resume $journal
number() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" $said | tail -1; }
sed -n 's/.*"offloaded_bytes":\([0-9]*\).*"resumed_bytes":\([0-9]*\).*/  \1 \2/p' $said
check nvme-copy-resumed-rest test "$(number resumed_bytes)" -gt 0 -a "$(($(number resumed_bytes) + $(number offloaded_bytes)))" = 1090519040

expect in-the-end 0 verified $hikyaku copy $source $destination --force --verify
