# Guest script: the kernel's target (LIO) with one file-backed LUN 0, on guest port 3260.
# Variables: BYTES, HOLD (seconds to stay up), optionally CHAP_USER and CHAP_SECRET. Prints LIO-UP when it serves.
set -e
for module in crc32c_generic libcrc32c target_core_mod target_core_file iscsi_target_mod; do
  modprobe $module 2>/dev/null || true
done
mount -t configfs config /sys/kernel/config 2>/dev/null || true
core=/sys/kernel/config/target/core/fileio_0/disk
mkdir -p $core
echo "fd_dev_name=/tmp/lun.img,fd_dev_size=$BYTES" > $core/control
echo 1 > $core/enable
for attribute in emulate_tpu emulate_tpws; do echo 1 > $core/attrib/$attribute 2>/dev/null || true; done
group=/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:lio/tpgt_1
mkdir -p $group/lun/lun_0 $group/np/0.0.0.0:3260
ln -s $core $group/lun/lun_0/disk
echo 0 > $group/attrib/demo_mode_write_protect
echo 1 > $group/attrib/generate_node_acls
echo 1 > $group/attrib/cache_dynamic_acls
if [ -n "${CHAP_USER:-}" ]; then
  echo 1 > $group/attrib/authentication
  # Without a newline, which LIO would take as part of them.
  printf %s "$CHAP_USER" > $group/auth/userid
  printf %s "$CHAP_SECRET" > $group/auth/password
else
  echo 0 > $group/attrib/authentication
fi
echo 1 > $group/enable
echo LIO-UP
sleep "${HOLD:-60}"
