# SPDX-License-Identifier: BSD-3-Clause
# common.sh - what the scripts beside it share. Sourced; RDMA_VM_BUILD is set.

# vm_lacks RDMA-VM: says why no VM can be booted here; fails when one can.
vm_lacks()
{
	local why

	if ! command -v qemu-system-x86_64 >/dev/null; then
		echo "no qemu-system-x86_64 (Debian: qemu-system-x86)"
	elif [ ! -e "$RDMA_VM_BUILD/vm" ] && ! why=$("$1" -- true 2>&1); then
		echo "the VM's kernel is not in $RDMA_VM_BUILD and cannot be fetched: $(tail -n 1 <<<"$why")"
	else
		return 1
	fi
}
