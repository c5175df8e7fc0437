//! Each rule is asked of the simulated kernel and of Linux. The results of every step must be the same.

mod linux;

use overspill_simkernel::rules;

macro_rules! tests {
    ($($module:ident: $($rule:ident),*;)*) => {
        $($(
            #[test]
            fn $rule() {
                linux::compare(rules::$module::$rule);
            }
        )*)*
    };
}

overspill_simkernel::each_rule!(tests);
