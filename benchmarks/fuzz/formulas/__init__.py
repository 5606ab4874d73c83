"""Every closed formula that bounds rest on, held against ball arithmetic at random arguments."""
